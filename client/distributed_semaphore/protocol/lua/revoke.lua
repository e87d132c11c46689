-- Takes slots and places away, whoever has them, and grants what that frees: a human's or the operator's decision.
--
-- ARGV   token...
-- Reply  { number of slots and places taken away, more }.
-- The processes that had them are asked to look at once, and learn of the loss no later than at their next heartbeat.
-- include: prelude
-- include: grant
local taken, victims = 0, {}
for _, token in ipairs(ARGV) do
  if free(token) == 1 or call('ZREM', QUEUE, token) == 1 then
    taken = taken + 1
    victims[client_of(token)] = true
  end
end
if taken > 0 then
  count('revoked', taken)
end
local _, _, _, more = grant('')
for client in pairs(victims) do
  call('PUBLISH', PREFIX .. 'w:' .. client, 'r')
end
return { taken, more and 1 or 0 }
