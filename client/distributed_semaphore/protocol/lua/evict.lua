-- Takes every slot and place away from the processes of which one field of their identity has a value, and grants on: their pod
-- has ended, or somebody wants its slots back.
--
-- ARGV   field (uid, pod), value, namespace of the pod ('' for any), from which grant on (0).
-- Reply  { slots taken away, places taken away, from which grant on to call again (0: done) }.
-- Its places go by its heartbeat, which counts as lapsed: a process that lives is told so at its next one, and rejoins.
-- Looks at 2,000 grants a call (rule 11).
-- include: prelude
-- include: grant
-- include: dead
local field, value, namespace, seen = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local victims, slots, any = {}, 0, false
local identities = call('HGETALL', IDENTITIES)
for i = 1, #identities, 2 do
  if find(identities[i + 1], value, 1, true) then
    local read, who = pcall(cjson.decode, identities[i + 1])
    if read and type(who) == 'table' and who[field] == value and (namespace == '' or who.namespace == namespace) then
      victims[identities[i]], any = true, true
      call('ZADD', CLIENTS, 'LT', now, identities[i]) -- one that has been silent for longer is forgotten in time
    end
  end
end
if not any or not limit then
  return { 0, 0, 0 }
end
local following = 0
for batch = 1, 10 do
  local tokens = call('ZRANGE', GRANTS, seen, seen + MOST - 1)
  for _, token in ipairs(tokens) do
    if victims[client_of(token)] and free(token) == 1 then
      slots = slots + 1
    else
      seen = seen + 1
    end
  end
  if #tokens < MOST then
    break
  end
  following = batch == 10 and seen or 0
end
local places = drop_dead_waiters()
if slots > 0 then
  count('revoked', slots)
end
grant('')
for client in pairs(victims) do
  call('PUBLISH', PREFIX .. 'w:' .. client, 'r')
end
return { slots, places, following }
