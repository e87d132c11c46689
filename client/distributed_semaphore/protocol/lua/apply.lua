-- What a process wants of one semaphore in one tick: releases (or leaving the queue), then acquires, then one grant.
--
-- One call for all of them, because it costs half the commands of a call each (docs/design.md has the figures).
-- ARGV   client, number of releases, token..., then (token, ticket, priority) for each acquire.
--        ticket is '' on the first attempt; '?' when an earlier attempt may have been executed; the old ticket of a waiter
--        that rejoins. priority 'x': do not wait. With '?' and a ticket the token is looked up first, so no retry takes a second slot or place (rule 3).
-- Reply  head, releases { 1 slot given back | 2 left the queue | 0 unknown }, acquires { code, value, expiry, ... }, own
--        grants { token, fence, ... }, expiry of those grants.
--        code 1 granted (value: fence), 2 queued (value: ticket), -1 closed, -2 queue full, -3 heavier than the limit,
--        -4 not configured, -5 would have to wait.
-- Rules  2, 3, 6, 8, 9.
-- include: prelude
-- include: grant

-- Tokens of processes that are gone fill the queue until they come to its head: before refusing, look for them.
local function drop_dead_waiters()
  local from, dropped = 0, 0
  while from < 5 * MOST do
    local tokens = call('ZRANGE', QUEUE, from, from + MOST - 1)
    local dead, leases = {}, {}
    for _, token in ipairs(tokens) do
      local client = string.match(token, '^[^.]+')
      if leases[client] == nil then
        leases[client] = tonumber(call('ZSCORE', CLIENTS, client) or 0)
      end
      if leases[client] <= now then
        dead[#dead + 1] = token
      end
    end
    if #dead > 0 then
      call('ZREM', QUEUE, unpack(dead))
      add('abandoned', #dead)
      dropped = dropped + #dead
    end
    if #tokens < MOST then
      break
    end
    from = from + MOST - #dead
  end
  return dropped
end

local me, releases = ARGV[1], tonumber(ARGV[2])
local freed, answers, expiry = {}, {}, now + (first or 0)
for i = 1, releases do
  local token = ARGV[2 + i]
  if call('ZREM', HOLDERS, token) == 1 then
    call('ZREM', GRANTS, token)
    count.extra = count.extra - weight_of(token) + 1
    count.releasedAt = now
    add('released', 1)
    freed[i] = 1
  elseif call('ZREM', QUEUE, token) == 1 then
    add('left', 1)
    freed[i] = 2
  else
    freed[i] = 0
  end
end

local waiting, held = call('ZCARD', QUEUE), call('ZCARD', HOLDERS) + count.extra
if doomed and held == 0 and count.releasedAt == now then -- the last holder of a deleted semaphore
  call('UNLINK', unpack(WIPE))
  counted = false
  limit = nil
end

local own, holders, grants = {}, {}, {}
for i = 3 + releases, #ARGV, 3 do
  local token, ticket, priority = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local weight, code, value, until_ms = weight_of(token), nil, 0, 0
  if ticket ~= '' then
    until_ms = tonumber(call('ZSCORE', HOLDERS, token) or 0)
    local place = call('ZSCORE', QUEUE, token)
    if until_ms > now then
      code, value = 1, tonumber(call('ZSCORE', GRANTS, token))
    elseif place then
      code, value = 2, place % STEP
    end
  end
  if code then
    -- an earlier attempt was executed
  elseif not limit then
    code = doomed and -1 or -4
  elseif state == 'Closed' then
    code = -1
  elseif limit > 0 and weight > limit then
    code = -3
  elseif waiting == 0 and open and held + weight <= limit then
    held = held + weight
    count.extra = count.extra + weight - 1
    local n = #holders
    code, value, until_ms = 1, note_grant(0, false), expiry
    holders[n + 1], holders[n + 2] = expiry, token
    grants[n + 1], grants[n + 2] = value, token
  elseif priority == 'x' then
    code = -5
  elseif waiting >= tonumber(config[6]) and waiting - drop_dead_waiters() >= tonumber(config[6]) then
    code = -2
  else
    value = tonumber(ticket)
    if not value then
      count.ticket = math.max(count.ticket + 1, now - EPOCH)
      counted = true
      value = count.ticket
    end
    call('ZADD', QUEUE, value - priority * STEP, token)
    if waiting == 0 then
      created(QUEUE)
    end
    waiting = waiting + 1
    code = 2
  end
  if code < 0 and limit and not doomed then
    add('refused', 1)
  end
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = code, value, until_ms
end
if #holders > 0 then
  call('ZADD', HOLDERS, unpack(holders))
  call('ZADD', GRANTS, unpack(grants))
  created(HOLDERS)
  created(GRANTS)
end

local soonest, more
if waiting > 0 then
  own, expiry, soonest, more = grant(me)
elseif limit then
  write_counters()
end
if count.granted <= #holders / 2 then
  created(COUNTERS) -- the first grants of this semaphore
end
return { head(soonest, more), freed, answers, own, expiry }
