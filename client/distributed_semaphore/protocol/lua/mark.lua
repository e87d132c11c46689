-- Notes with which run of the server a config was seen; when that is another than before, the server was restarted or another
-- took its place, and may have lost the last writes: holders get a reclaim to put their slots back (rule 10).
--
-- ARGV   uid, the server's run id, how long the reclaim lasts (ms).
-- Reply  2: a reclaim was opened; 1: noted; 0: there is no config of this uid.
-- A reclaim that is open already is not shortened.
-- include: prelude
if not limit or doomed or call('HGET', CONFIG, 'uid') ~= ARGV[1] then
  return 0
end
local run = call('HGET', CONFIG, 'run')
if run == ARGV[2] then
  return 1
end
call('HSET', CONFIG, 'run', ARGV[2])
if not run then
  return 1
end
call('HSET', CONFIG, 'reclaim', format('%d', max(reclaim, now + tonumber(ARGV[3]))))
return 2
