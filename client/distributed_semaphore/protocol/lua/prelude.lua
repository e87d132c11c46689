-- Shared beginning of every script that changes a semaphore: its keys, the server's clock, its config and counters.
--
-- KEYS     holders, queue, clients, grants, identities, counters of one semaphore
-- holders  zset token -> expiry (ms)            the only truth about slots
-- queue    zset token -> -priority*2^40+ticket  order of arrival; a ticket is max(previous + 1, ms since 2025)
-- clients  zset client -> expiry (ms)           one heartbeat keeps every waiter of a process alive
-- grants   zset token -> fence                  order of granting; a fence is max(previous + 1, us since 1970)
-- A token is <client>.<number>.<weight>, so whose it is and what it weighs need no entry of their own.
-- The config is not in KEYS (a client's Redis user may only read it): its key shares prefix and tag with KEYS[1].
-- Only the server's TIME counts (rule 1 of the design).
--
-- Numbers go to Redis as format('%d'), which is exact to 2^53 (.. keeps 14 digits) and costs a fifth of what redis.call
-- makes of a number.
local call, find, sub, match, format, max = redis.call, string.find, string.sub, string.match, string.format, math.max
local HOLDERS, QUEUE, CLIENTS, GRANTS, IDENTITIES, COUNTERS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local PREFIX = sub(HOLDERS, 1, -8)
local CONFIG = PREFIX .. 'config'
local EPOCH, STEP = 1735689600000, 1099511627776
local MOST = 200 -- members that one command of a script touches at most
local MAX_FIRST = 5000 -- longest lease of a grant that its holder has not confirmed by a renewal (rule 4)

local clock = call('TIME')
local usec = clock[1] * 1000000 + clock[2]
local now = math.floor(usec / 1000)

-- reclaim: until then nothing is granted, and holders put back what a loss of data took from them (rule 10).
-- lifetime: how long the keys of a semaphore that a client declared outlive their last use; an operator's have no end.
local config = call('HMGET', CONFIG, 'limit', 'lease', 'state', 'generation', 'perProcessLimit', 'maxWaiting', 'maxWait',
  'reclaim', 'lifetime')
local limit, lease, state = tonumber(config[1]), tonumber(config[2]), config[3]
-- By tonumber, since a config written by hand must not keep `declare` from writing it anew.
local max_wait, reclaim, lifetime = tonumber(config[7]) or 0, tonumber(config[8]) or 0, tonumber(config[9]) or 0
local open = state == 'Active' and reclaim <= now

-- Counters: read once, written once. extra is the weight of all holders beyond one each. pace is a moving average of the
-- time between grants (us) while somebody waits: a waiter's place times that is what it may expect to wait.
-- The busy ones share a field, since every number that is read or written on its own costs as much as a command.
local stored = call('HMGET', COUNTERS, 'tally', 'doomed')
local tally = stored[1]
local ticket, fence, extra, pace, granted, released, waited, released_at = 0, 0, 0, 0, 0, 0, 0, 0
if tally then
  ticket, fence, extra, pace, granted, released, waited, released_at =
    match(tally, '(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)')
  -- Adding 0 makes a number for half of what tonumber costs; the others are text until something is added to them.
  ticket, fence, extra, pace = ticket + 0, fence + 0, extra + 0, pace + 0
end
local changed = false

-- A semaphore that was deleted has no config any more; what is left of it is closed, and remembers its lease (see forget).
local doomed = not limit and stored[2]
if doomed then
  limit, lease, state = 0, tonumber(doomed), 'Closed'
end
local first = lease and math.min(lease, MAX_FIRST)

-- Counters of what is rare.
local function count(name, n)
  call('HINCRBY', COUNTERS, name, n)
end

local function write_counters()
  if changed then
    call('HSET', COUNTERS, 'tally', format('%d %d %d %d %d %d %d %d', ticket, fence, extra, pace, granted, released, waited,
      released_at))
  end
end

-- A key that a script may have created gets the lifetime of its semaphore at once; renewals extend it.
local function created(key)
  if lifetime > 0 then
    call('PEXPIRE', key, lifetime)
  end
end

local function expire_all(ms)
  for i = 1, 6 do
    call('PEXPIRE', KEYS[i], ms)
  end
end

local function client_of(token)
  return sub(token, 1, find(token, '.', 1, true) - 1)
end

local function weight_of(token)
  return sub(token, -2) == '.1' and 1 or tonumber(match(token, '%.(%d+)$'))
end

-- Takes a token out of the holders; gives 1 if it was there.
local function free(token)
  local was = call('ZREM', HOLDERS, token)
  if was == 1 then
    call('ZREM', GRANTS, token)
    extra = extra - weight_of(token) + 1
    released_at, changed = now, true
  end
  return was
end

-- The part of a reply that tells a client where the semaphore stands; limit -1: not configured. soonest: when a slot may
-- become free without anybody's doing, or the reclaim ends; 0: not looked for.
local function head(soonest, more)
  if reclaim > now then
    soonest = math.min(soonest or reclaim, reclaim)
  end
  return {
    now, limit or -1, lease or 0, state or '', tonumber(config[4]) or 0, tonumber(config[5]) or 0,
    soonest or 0, more and 1 or 0, max_wait,
  }
end
