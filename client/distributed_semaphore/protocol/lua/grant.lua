-- Shared part: gives every free slot to the head of the queue (rule 2: whoever frees a slot grants it on).
--
-- Returns the caller's own grants { token, fence, ... }, the expiry (ms) of all grants made, the nearest expiry of any
-- holder if it had to look for it, and whether the work stopped at its bound (rule 11), so that the caller calls again. Writes the counters.
-- Keeps rules 4 (dead or unreachable clients are lapsed as a whole, their waiters dropped as they come to the head),
-- 5 (all hear of it by message, none depends on it), 7 (fence) and 8 (no overtaking, no grant above the limit).
local function take_back(tokens)
  for _, token in ipairs(tokens) do
    extra = extra - weight_of(token) + 1
  end
  call('ZREM', HOLDERS, unpack(tokens))
  call('ZREM', GRANTS, unpack(tokens))
  count('expired', #tokens)
  changed = true
end

local function take_back_expired()
  local expired = call('ZRANGEBYSCORE', HOLDERS, '-inf', now, 'LIMIT', 0, MOST)
  if #expired > 0 then
    take_back(expired)
  end
  return #expired == MOST
end

-- Looks for expired leases where they are in the way: the weight then held, the next expiry, whether there are more.
local function make_room(held)
  local soonest, more = tonumber(call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')[2]), false
  if soonest and soonest <= now then
    more = take_back_expired()
    held = call('ZCARD', HOLDERS) + extra
    soonest = tonumber(call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')[2])
  end
  return held, soonest, more
end

-- Which clients of these waiting tokens can be granted to: the caller can; another must have a live lease and a listener.
local function reachable(heads, me)
  local clients, channels, live, n = {}, {}, { [me] = true }, 0
  for i = 1, #heads, 2 do
    local client = client_of(heads[i])
    if live[client] == nil then
      live[client] = false
      n = n + 1
      clients[n], channels[n] = client, PREFIX .. 'w:' .. client
    end
  end
  if n > 0 then
    local leases = call('ZMSCORE', CLIENTS, unpack(clients))
    local listeners = call('PUBSUB', 'NUMSUB', unpack(channels))
    for i = 1, n do
      if leases[i] and tonumber(leases[i]) > now then
        if listeners[2 * i] > 0 then
          live[clients[i]] = true
        else
          call('ZADD', CLIENTS, now, clients[i])
        end
      end
    end
  end
  return live
end

-- A grant's fence, noted in the totals. Waits are counted by the power of two (ms) that they stay below.
local function note_grant(wait, queued, waits)
  if queued and fence > 0 then
    local share = pace > 0 and 16 or 1 -- the first counts whole, or estimates would be far too low for long
    pace = math.floor(max(0, pace + (math.min(usec - fence, wait * 1000) - pace) / share))
  end
  fence = max(fence + 1, usec)
  granted, waited, changed = granted + 1, waited + wait, true
  local _, power = math.frexp(wait)
  waits[power] = (waits[power] or 0) + 1
  return fence
end

local function write_waits(waits)
  for power, n in pairs(waits) do
    count('waits' .. math.min(power, 20), n)
  end
end

-- held: the weight of all holders, where the caller knows it.
local function grant(me, held)
  local own, mail, expiry, soonest, more, batches = {}, nil, now + (first or 0), nil, false, 0
  local until_text = format('%d', expiry)
  held = held or call('ZCARD', HOLDERS) + extra
  if not open or held >= limit then
    held, soonest, more = make_room(held)
  end
  local blocked = not open or held >= limit
  while not blocked do
    if batches == 10 then
      more = true
      break
    end
    batches = batches + 1
    local heads = call('ZRANGE', QUEUE, 0, math.min(limit - held, MOST) - 1, 'WITHSCORES')
    if #heads == 0 then
      break
    end
    local live, gone, holders, grants, waits, n = reachable(heads, me), {}, {}, {}, {}, 0
    local heavy = false
    for i = 1, #heads, 2 do
      local token = heads[i]
      local client, weight, wait = client_of(token), weight_of(token), max(0, now - EPOCH - heads[i + 1] % STEP)
      if not live[client] then
        count('abandoned', 1)
      elseif max_wait > 0 and wait > max_wait then
        count('overdue', 1) -- its client has given up by the same measure
      elseif limit > 0 and weight > limit then
        count('refused', 1) -- its client learns from the new limit that it is too heavy
      elseif held + weight > limit then
        heavy = true
        break
      else
        held = held + weight
        extra = extra + weight - 1
        local number = note_grant(wait, true, waits)
        holders[n + 1], holders[n + 2] = until_text, token
        grants[n + 1], grants[n + 2] = format('%d', number), token
        n = n + 2
        if client == me then
          local m = #own
          own[m + 1], own[m + 2] = token, number
        else
          mail = mail or {}
          mail[client] = format('%s %s %d', mail[client] or format('g %d %d', now, expiry), token, number)
        end
      end
      gone[#gone + 1] = token
    end
    if #gone > 0 then
      call('ZREM', QUEUE, unpack(gone))
    end
    if n > 0 then
      call('ZADD', HOLDERS, unpack(holders))
      call('ZADD', GRANTS, unpack(grants))
      write_waits(waits)
      created(HOLDERS)
      created(GRANTS)
    end
    if heavy then
      local before = held
      held, soonest, more = make_room(held)
      blocked = held == before
    else
      blocked = held >= limit
    end
  end
  write_counters()
  -- Messages go last: what is announced has been written.
  if mail then
    for client, text in pairs(mail) do
      call('PUBLISH', PREFIX .. 'w:' .. client, text)
    end
  end
  return own, expiry, soonest, more
end
