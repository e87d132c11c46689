-- Removes a semaphore: waiters are told `Closed`, holders may finish, and the last release takes the keys with it.
--
-- The config goes at once; a mark in the counters says that the rest is closed, and what the lease was. Until the last
-- release the keys carry a time to live that every renewal extends, so that crashed holders leave nothing behind. Where
-- waiters are sent away the mark stays for one short lease, so that who missed the message is told `Closed` too.
-- ARGV   uid, epoch: a config of another resource is left alone, and so is one of a higher epoch (rule 12).
-- Reply  number of slots still held; -1 refused as stale.
-- include: prelude
-- include: hint
local present = call('HMGET', CONFIG, 'uid', 'epoch')
if present[1] ~= ARGV[1] then
  return 0
end
if tonumber(ARGV[2]) < (tonumber(present[2]) or 0) then
  return -1
end
local waiting, holding = call('ZCARD', QUEUE), call('ZCOUNT', HOLDERS, '(' .. now, '+inf')
call('UNLINK', CONFIG, QUEUE)
if holding == 0 then
  call('UNLINK', HOLDERS, GRANTS, IDENTITIES, COUNTERS)
end
if holding > 0 or waiting > 0 then
  call('HSET', COUNTERS, 'doomed', lease)
end
if holding > 0 then
  expire_all(lease + 60000)
elseif waiting > 0 then
  call('PEXPIRE', COUNTERS, first)
end
hint('c') -- after the writes, before it is forgotten who listens
if holding == 0 then
  call('UNLINK', CLIENTS)
end
return holding
