-- Tries each command of a client's scripts, in a form that changes nothing, and says which of them its user may not run.
-- So a right that only a renewal needs, or a command that this server lacks, is known before the first slot is held.
--
-- ARGV   client
-- Reply  { command, what Redis says, ... } of those that it may not run, or that are not known. What is wrong with this
--        semaphore's keys and channels is not said: another's may be fine.
local HOLDERS, QUEUE, CLIENTS, GRANTS, IDENTITIES, COUNTERS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local PREFIX = string.sub(HOLDERS, 1, -8)
local CONFIG, CHANNEL = PREFIX .. 'config', PREFIX .. 'w:' .. ARGV[1]
local tries = {
  { 'TIME' },
  { 'HMGET', CONFIG, 'limit' },
  { 'HGETALL', CONFIG },
  { 'HMGET', COUNTERS, 'tally' },
  { 'HGET', COUNTERS, 'tally' },
  { 'HSET', COUNTERS, 'tally', '', 'a field without value' },
  { 'HINCRBY', COUNTERS, 'left', 'no number' },
  { 'ZADD', HOLDERS, 'XX', '0', '' },
  { 'ZREM', HOLDERS, '' },
  { 'ZCARD', HOLDERS },
  { 'ZCOUNT', HOLDERS, '1', '0' },
  { 'ZSCORE', HOLDERS, '' },
  { 'ZMSCORE', HOLDERS, '' },
  { 'ZRANGE', HOLDERS, '0', '0' },
  { 'ZRANGEBYSCORE', HOLDERS, '1', '0' },
  { 'ZRANK', QUEUE, '' },
  { 'PEXPIRE', HOLDERS, 'no number' },
  { 'PUBSUB', 'NUMSUB', CHANNEL },
  { 'PUBLISH', CHANNEL, 'r' },
}
for _, key in ipairs({ QUEUE, HOLDERS, GRANTS, CLIENTS }) do
  if redis.pcall('ZCARD', key) == 0 then -- so it is not there
    tries[#tries + 1] = { 'UNLINK', key }
    break
  end
end

local refused, n = {}, 0
for _, try in ipairs(tries) do
  local reply = redis.pcall(unpack(try))
  local said = type(reply) == 'table' and reply.err or ''
  for _, words in ipairs({ "permissions to run", "can't run this command", 'Unknown' }) do
    if string.find(said, words, 1, true) then
      refused[n + 1], refused[n + 2], n = string.lower(try[1]), said, n + 2
      break
    end
  end
end
return refused
