-- Writes the config of a semaphore and grants whatever it now allows (rule 8: a raised limit is felt at once, in order).
--
-- ARGV   uid, generation, epoch, then all fields and values of the config.
-- Reply  { 1 written | 2 it stood there already | 0 refused as stale, more }.
-- Stale (rule 12): a lower epoch than the stored one; the same uid and a lower generation; a client's own config (no uid)
-- where an operator's is.
-- include: prelude
-- include: grant
-- include: hint
local uid, generation, epoch = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local stored = call('HMGET', CONFIG, 'uid', 'generation', 'epoch')
if stored[1] and not doomed then
  local older = epoch < tonumber(stored[3]) or (uid == stored[1] and generation < tonumber(stored[2]))
  if older or (uid == '' and stored[1] ~= '') then
    return { 0, 0 }
  end
end

local same = not doomed
for i = 4, #ARGV, 2 do
  same = same and call('HGET', CONFIG, ARGV[i]) == ARGV[i + 1]
end
if same then
  return { 2, 0 }
end
call('HSET', CONFIG, unpack(ARGV, 4))
if doomed then -- the same name is wanted again before its last holder has gone
  call('HDEL', CONFIG, 'doomed')
  for _, key in ipairs(WIPE) do
    call('PERSIST', key)
  end
end

local spec = call('HMGET', CONFIG, 'limit', 'lease', 'state')
limit, lease, state = tonumber(spec[1]), tonumber(spec[2]), spec[3]
first = math.min(lease, MAX_FIRST)
local _, _, _, more = grant('')
if state == 'Closed' then
  call('UNLINK', QUEUE)
end
hint('r')
return { 1, more and 1 or 0 }
