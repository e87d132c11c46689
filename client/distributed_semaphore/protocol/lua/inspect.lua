-- One look at a semaphore, changing nothing.
--
-- ARGV   how many holders and waiters to name, a waiting token whose place is asked for (may be missing).
-- Reply  now (ms), config and counters as flat lists, weight held, number of holders, number of waiters,
--        holders { token, fence, expiry, ... } the longest holding first, waiters { token, score, ... } the head first,
--        identities { client, JSON, ... } of those named, place of the token (1: the head; 0: it does not wait),
--        ticket of the longest waiting (0: nobody waits): it may stand behind others of higher priority.
--        A few commands for each one named, whatever the length of the queue.
local call = redis.call
local HOLDERS, QUEUE, GRANTS, IDENTITIES, COUNTERS = KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[6]
local most = tonumber(ARGV[1])
local clock = call('TIME')
local now = math.floor((clock[1] * 1000000 + clock[2]) / 1000)
local holder_count = call('ZCOUNT', HOLDERS, '(' .. now, '+inf')
local holders, clients, seen = {}, {}, {}

local function know(token)
  local client = string.match(token, '^[^.]+')
  if not seen[client] then
    seen[client] = true
    clients[#clients + 1] = client
  end
end

-- Grants are in order of granting; those whose lease has run out are passed over.
if most > 0 then
  local grants = call('ZRANGE', GRANTS, 0, 10 * most - 1, 'WITHSCORES')
  for i = 1, #grants, 2 do
    local expiry = call('ZSCORE', HOLDERS, grants[i])
    local n = #holders
    if n < 3 * most and expiry and tonumber(expiry) > now then
      holders[n + 1], holders[n + 2], holders[n + 3] = grants[i], grants[i + 1], expiry
      know(grants[i])
    end
    if n == 3 * most then
      break
    end
  end
end

local waiters = most > 0 and call('ZRANGE', QUEUE, 0, most - 1, 'WITHSCORES') or {}
for i = 1, #waiters, 2 do
  know(waiters[i])
end

-- Within a priority the first waits longest; so the first of each priority is looked at, of 16 at most.
local STEP, oldest, from = 1099511627776, 0, '-inf'
for _ = 1, 16 do
  local score = call('ZRANGEBYSCORE', QUEUE, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if not score then
    break
  end
  local ticket = score % STEP
  oldest = (oldest == 0 or ticket < oldest) and ticket or oldest
  from = string.format('%d', score - ticket + STEP)
end

local identities = {}
if #clients > 0 then
  for i, identity in ipairs(call('HMGET', IDENTITIES, unpack(clients))) do
    if identity then
      local n = #identities
      identities[n + 1], identities[n + 2] = clients[i], identity
    end
  end
end
local place = ARGV[2] and call('ZRANK', QUEUE, ARGV[2])
local counters = call('HGETALL', COUNTERS)
local extra = string.match(call('HGET', COUNTERS, 'tally') or '0 0 0', '^%d+ %d+ (%d+)')
local config = call('HGETALL', string.sub(HOLDERS, 1, -8) .. 'config')
return {
  now, config, counters, call('ZCARD', HOLDERS) + extra, holder_count, call('ZCARD', QUEUE), holders, waiters,
  identities, place and place + 1 or 0, oldest,
}
