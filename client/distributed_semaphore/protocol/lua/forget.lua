-- Removes a semaphore: waiters are told `Closed`, holders may finish, and the last release takes the keys with it.
--
-- Until then the keys carry a time to live that every renewal extends, so that crashed holders leave nothing behind.
-- A config that sent waiters away stays for one heartbeat's lease longer, so that who missed the message is told `Closed` too.
-- ARGV   uid: a config of another resource is left alone.
-- Reply  number of slots still held.
-- include: prelude
-- include: hint
local uid = call('HGET', CONFIG, 'uid')
if not uid or uid ~= ARGV[1] then
  return 0
end
local waiting, holding = call('ZCARD', QUEUE), call('ZCOUNT', HOLDERS, '(' .. now, '+inf')
hint('c')
if holding > 0 then
  call('UNLINK', QUEUE)
  call('HSET', CONFIG, 'state', 'Closed', 'doomed', 1)
  expire_all(lease + 60000)
elseif waiting > 0 then
  call('UNLINK', HOLDERS, QUEUE, CLIENTS, GRANTS, IDENTITIES, COUNTERS)
  call('HSET', CONFIG, 'state', 'Closed', 'doomed', 1)
  call('PEXPIRE', CONFIG, first)
else
  call('UNLINK', HOLDERS, QUEUE, CLIENTS, GRANTS, IDENTITIES, COUNTERS, CONFIG)
end
return holding
