-- Shared part: tokens of processes that are gone stay in the queue until they come to its head. Before a full queue refuses,
-- and in housekeeping, so that the numbers are true, they are looked for; the first 1,000 places a call.
local function drop_dead_waiters()
  local from, dropped = 0, 0
  while from < 5 * MOST do
    local tokens = call('ZRANGE', QUEUE, from, from + MOST - 1)
    local dead, leases = {}, {}
    for _, token in ipairs(tokens) do
      local client = client_of(token)
      if leases[client] == nil then
        leases[client] = tonumber(call('ZSCORE', CLIENTS, client) or 0)
      end
      if leases[client] <= now then
        dead[#dead + 1] = token
      end
    end
    if #dead > 0 then
      call('ZREM', QUEUE, unpack(dead))
      count('abandoned', #dead)
      dropped = dropped + #dead
    end
    if #tokens < MOST then
      break
    end
    from = from + MOST - #dead
  end
  return dropped
end
