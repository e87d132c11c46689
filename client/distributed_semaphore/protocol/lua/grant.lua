-- Shared part: gives every free slot to the head of the queue (rule 2: whoever frees a slot grants it on).
--
-- Returns the caller's own grants { token, fence, ... }, the expiry (ms) of all grants made, the nearest expiry of any
-- holder, and whether the work stopped at its bound (rule 11), so that the caller calls again.
-- Keeps rules 4 (dead or unreachable clients are lapsed as a whole, their waiters dropped as they come to the head),
-- 5 (all hear of it by message, none depends on it), 7 (fence) and 8 (no overtaking, no grant above the limit).
local BATCHES = 10

local function take_back_expired()
  local expired = call('ZRANGEBYSCORE', HOLDERS, '-inf', now, 'LIMIT', 0, MOST)
  if #expired == 0 then
    return false
  end
  for _, token in ipairs(expired) do
    count.extra = count.extra - weight_of(token) + 1
  end
  call('ZREM', HOLDERS, unpack(expired))
  call('ZREM', GRANTS, unpack(expired))
  add('expired', #expired)
  return #expired == MOST
end

-- Which clients of these waiting tokens can be granted to: the caller can; another must have a live lease and a listener.
local function reachable(heads, me)
  local clients, channels, live = {}, {}, {}
  for i = 1, #heads, 2 do
    local client = string.match(heads[i], '^[^.]+')
    if live[client] == nil then
      live[client] = client == me
      if client ~= me then
        clients[#clients + 1] = client
        channels[#channels + 1] = PREFIX .. 'w:' .. client
      end
    end
  end
  if #clients > 0 then
    local leases = call('ZMSCORE', CLIENTS, unpack(clients))
    local listeners = call('PUBSUB', 'NUMSUB', unpack(channels))
    for i, client in ipairs(clients) do
      local leased = leases[i] and tonumber(leases[i]) > now
      live[client] = leased and listeners[2 * i] > 0
      if leased and not live[client] then
        call('ZADD', CLIENTS, now, client)
      end
    end
  end
  return live
end

local function grant(me)
  local own, mail, order, expiry = {}, {}, {}, now + (first or 0)
  local more = take_back_expired()
  local held = call('ZCARD', HOLDERS) + count.extra
  local batches, blocked = 0, not limit or not open
  while not blocked and held < limit do
    if batches == BATCHES then
      more = true
      break
    end
    batches = batches + 1
    local heads = call('ZRANGE', QUEUE, 0, math.min(limit - held, MOST) - 1, 'WITHSCORES')
    if #heads == 0 then
      break
    end
    local live = reachable(heads, me)
    local gone, holders, grants = {}, {}, {}
    for i = 1, #heads, 2 do
      local token = heads[i]
      local client, weight = string.match(token, '^([^.]+)%.%d+%.(%d+)$')
      weight = tonumber(weight)
      local waited = math.max(0, now - EPOCH - heads[i + 1] % STEP)
      if not live[client] then
        add('abandoned', 1)
      elseif max_wait > 0 and waited > max_wait then
        add('overdue', 1) -- its client has given up by the same measure
      elseif limit > 0 and weight > limit then
        add('refused', 1) -- its client learns from the new limit that it is too heavy
      elseif held + weight > limit then
        blocked = true
        break
      else
        held = held + weight
        count.extra = count.extra + weight - 1
        local fence = note_grant(waited, true)
        local n = #holders
        holders[n + 1], holders[n + 2] = expiry, token
        grants[n + 1], grants[n + 2] = fence, token
        if client == me then
          local m = #own
          own[m + 1], own[m + 2] = token, fence
        else
          if not mail[client] then
            mail[client] = { string.format('g %.0f %.0f', now, expiry) }
            order[#order + 1] = client
          end
          table.insert(mail[client], string.format('%s %.0f', token, fence))
        end
      end
      gone[#gone + 1] = token
    end
    if #gone > 0 then
      call('ZREM', QUEUE, unpack(gone))
    end
    if #holders > 0 then
      call('ZADD', HOLDERS, unpack(holders))
      call('ZADD', GRANTS, unpack(grants))
      created(HOLDERS)
      created(GRANTS)
    end
  end
  local soonest = call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')[2]
  write_counters()
  -- Messages go last: what is announced has been written.
  for _, client in ipairs(order) do
    call('PUBLISH', PREFIX .. 'w:' .. client, table.concat(mail[client], ' '))
  end
  return own, expiry, tonumber(soonest), more
end
