-- Shared part: asks every live process to look at once what has become of the semaphore ('r'), or tells it that it was
-- closed for good ('c'). Only a hint (rule 5): who misses it learns the same at its next heartbeat.
local function hint(message)
  for _, client in ipairs(call('ZRANGEBYSCORE', CLIENTS, '(' .. now, '+inf', 'LIMIT', 0, 5 * MOST)) do
    call('PUBLISH', PREFIX .. 'w:' .. client, message)
  end
end
