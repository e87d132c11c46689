-- Writes the config of a semaphore and grants whatever it now allows (rule 8: a raised limit is felt at once, in order).
--
-- ARGV   uid, generation, epoch, reclaim, fence, then all fields and values of the config.
--        reclaim: ms for which holders may put back their slots, and nothing is granted, if the config has vanished; 0 when
--        nobody can have held one. fence: the highest that is known, so that fences rise beyond a loss too (rules 7, 10).
-- Reply  { 1 written | 2 it stood there already | 0 refused as stale, more }.
-- Stale (rule 12): a lower epoch than the stored one; the same uid and a lower generation; a client's own config (no uid)
-- where an operator's is.
-- include: prelude
-- include: grant
-- include: hint
local uid, generation, epoch = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local window, known = tonumber(ARGV[4]), tonumber(ARGV[5])
local present = call('HMGET', CONFIG, 'uid', 'generation', 'epoch')
if present[1] then
  local older = epoch < (tonumber(present[3]) or 0) or (uid == present[1] and generation < (tonumber(present[2]) or 0))
  if older or (uid == '' and present[1] ~= '') then
    return { 0, 0 }
  end
end

local same = true
for i = 6, #ARGV, 2 do
  same = same and call('HGET', CONFIG, ARGV[i]) == ARGV[i + 1]
end
if same then
  return { 2, 0 }
end
call('HSET', CONFIG, unpack(ARGV, 6))
if not present[1] then
  fence, changed = max(fence, known), true
  if window > 0 and not doomed then
    reclaim = now + window
    call('HSET', CONFIG, 'reclaim', reclaim)
  end
end
if doomed then -- the same name is wanted again before its last holder has gone
  call('HDEL', COUNTERS, 'doomed')
end

local spec = call('HMGET', CONFIG, 'limit', 'lease', 'state', 'lifetime')
limit, lease, state, lifetime = tonumber(spec[1]), tonumber(spec[2]), spec[3], tonumber(spec[4]) or 0
first = math.min(lease, MAX_FIRST)
open = state == 'Active' and reclaim <= now
local _, _, _, more = grant('')
if state == 'Closed' then
  call('UNLINK', QUEUE)
end
hint('r')
-- Whoever declared it before, all its keys live as long as this config says.
for i = 1, 7 do
  local key = KEYS[i] or CONFIG
  if lifetime > 0 then
    call('PEXPIRE', key, lifetime)
  else
    call('PERSIST', key)
  end
end
return { 1, more and 1 or 0 }
