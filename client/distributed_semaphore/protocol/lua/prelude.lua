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
local call = redis.call
local HOLDERS, QUEUE, CLIENTS, GRANTS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local IDENTITIES, COUNTERS = KEYS[5], KEYS[6]
local PREFIX = string.sub(HOLDERS, 1, -8)
local CONFIG = PREFIX .. 'config'
local EPOCH, STEP = 1735689600000, 1099511627776
local MOST = 200 -- members that one command of a script touches at most
local MAX_FIRST = 5000 -- longest lease of a grant that its holder has not confirmed by a renewal (rule 4)
-- Upper bounds (ms) of the wait-time histogram; `WAIT_BUCKETS_MS` of snapshot.py.
local BUCKETS = { 1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 300000 }
local WIPE = { HOLDERS, QUEUE, CLIENTS, GRANTS, IDENTITIES, COUNTERS, CONFIG }

local clock = call('TIME')
local usec = clock[1] * 1000000 + clock[2]
local now = math.floor(usec / 1000)

local config = call('HMGET', CONFIG, 'limit', 'lease', 'state', 'generation', 'perProcessLimit', 'maxWaiting', 'maxWait',
  'reclaim', 'lifetime', 'doomed')
local limit, lease, state, doomed = tonumber(config[1]), tonumber(config[2]), config[3], config[10]
local first = lease and math.min(lease, MAX_FIRST)
local max_wait = tonumber(config[7]) or 0
-- Until then nothing is granted, and holders put back what a loss of data took from them (rule 10).
local reclaim = tonumber(config[8]) or 0
-- How long the keys of a semaphore that a client declared outlive their last use; an operator's have no end of their own.
local lifetime = tonumber(config[9]) or 0
local open = state == 'Active' and reclaim <= now

-- Counters are read once and written once, whatever happens in between.
local NAMES = { 'ticket', 'fence', 'extra', 'granted', 'released', 'expired', 'abandoned', 'left', 'refused', 'overdue',
  'reclaimed', 'revoked', 'waited', 'releasedAt', 'pace' }
local count, counted, waits = {}, false, {}
for i, value in ipairs(call('HMGET', COUNTERS, unpack(NAMES))) do
  count[NAMES[i]] = tonumber(value) or 0
end
local function add(name, n)
  count[name] = count[name] + n
  counted = true
end
local function write_counters()
  if not counted then
    return
  end
  local fields = {}
  for i, name in ipairs(NAMES) do
    fields[2 * i - 1], fields[2 * i] = name, string.format('%.0f', count[name])
  end
  call('HSET', COUNTERS, unpack(fields))
  for bucket, n in pairs(waits) do
    call('HINCRBY', COUNTERS, 'waits' .. bucket, n)
  end
end

-- A key that a script creates gets the lifetime of its semaphore at once; renewals extend it.
local function created(key)
  if lifetime > 0 then
    call('PEXPIRE', key, lifetime)
  end
end

local function weight_of(token)
  return tonumber(string.match(token, '%.(%d+)$')) or 1
end

-- Notes a grant in fence and totals. pace is a moving average of the time between grants (us) while somebody waits:
-- a waiter's place times that is what it may expect to wait.
local function note_grant(waited, queued)
  if queued and count.fence > 0 then
    local since = math.min(usec - count.fence, waited * 1000)
    count.pace = math.max(0, count.pace + (since - count.pace) / 16)
  end
  count.fence = math.max(count.fence + 1, usec)
  add('granted', 1)
  add('waited', waited)
  local bucket = 1
  while BUCKETS[bucket] and waited > BUCKETS[bucket] do
    bucket = bucket + 1
  end
  waits[bucket] = (waits[bucket] or 0) + 1
  return count.fence
end

-- The part of a reply that tells a client where the semaphore stands; limit -1: not configured. soonest: when a slot may
-- become free without anybody's doing, or the reclaim ends.
local function head(soonest, more)
  if reclaim > now then
    soonest = math.min(soonest or reclaim, reclaim)
  end
  return {
    now, limit or -1, lease or 0, state or '', tonumber(config[4]) or 0, tonumber(config[5]) or 0,
    soonest or 0, more and 1 or 0, max_wait,
  }
end
