-- Removes a semaphore: waiters are told `Closed`, holders may finish, and the last release takes the keys with it.
--
-- The config goes at once; a mark in the counters says that the rest is closed, and what the lease was. Until the last
-- release the keys carry a time to live that every renewal extends, so that crashed holders leave nothing behind. Where
-- waiters are sent away the mark stays for one short lease, so that who missed the message is told `Closed` too.
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
call('UNLINK', CONFIG, QUEUE)
if holding > 0 then
  call('HSET', COUNTERS, 'doomed', lease)
  expire_all(lease + 60000)
else
  call('UNLINK', HOLDERS, CLIENTS, GRANTS, IDENTITIES, COUNTERS)
  if waiting > 0 then
    call('HSET', COUNTERS, 'doomed', lease)
    call('PEXPIRE', COUNTERS, first)
  end
end
return holding
