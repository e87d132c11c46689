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
local WIPE = { HOLDERS, QUEUE, CLIENTS, GRANTS, IDENTITIES, COUNTERS, CONFIG }

local clock = call('TIME')
local usec = clock[1] * 1000000 + clock[2]
local now = math.floor(usec / 1000)

local config = call('HMGET', CONFIG, 'limit', 'lease', 'state', 'generation', 'perProcessLimit', 'maxWaiting', 'doomed')
local limit, lease, state, doomed = tonumber(config[1]), tonumber(config[2]), config[3], config[7]
local first = lease and math.min(lease, MAX_FIRST)

-- Counters are read once and written once, whatever happens in between.
local NAMES = { 'ticket', 'fence', 'extra', 'granted', 'released', 'expired', 'abandoned', 'left', 'refused', 'waited', 'releasedAt' }
local count, counted = {}, false
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
end

local function weight_of(token)
  return tonumber(string.match(token, '%.(%d+)$')) or 1
end

-- The part of a reply that tells a client where the semaphore stands; limit -1: not configured.
local function head(soonest, more)
  return {
    now, limit or -1, lease or 0, state or '', tonumber(config[4]) or 0, tonumber(config[5]) or 0,
    soonest or 0, more and 1 or 0,
  }
end
