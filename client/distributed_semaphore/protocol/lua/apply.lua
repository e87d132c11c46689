-- What a process wants of one semaphore in one tick: releases (or leaving the queue), then acquires, then one grant.
--
-- One call for all of them, because it costs half the commands of a call each (docs/design.md has the figures).
-- ARGV   client, number of releases, token..., then (token, ticket, priority) for each acquire.
--        ticket is '' on the first attempt; '?' when an earlier attempt may have been executed; the old ticket of a waiter
--        that rejoins. priority 'x': do not wait. With '?' and a ticket the token is looked up first, so no retry takes a second slot or place (rule 3).
-- Reply  flat, since a list in a list costs the server as much as ten numbers: the 9 values of the head, expiry of own grants,
--        for each release 1 slot given back | 2 left the queue | 0 unknown, for each acquire code, value, expiry, then the
--        caller's own grants: token, fence, ...
--        code 1 granted (value: fence), 2 queued (value: ticket), -1 closed, -2 queue full, -3 heavier than the limit,
--        -4 not configured, -5 would have to wait.
-- Rules  2, 3, 6, 8, 9.
-- include: prelude
-- include: grant
-- include: dead

local me, releases, freed = ARGV[1], tonumber(ARGV[2]), {}
local given_back = false
for i = 1, releases do
  local token = ARGV[2 + i]
  if free(token) == 1 then
    released, given_back = released + 1, true
    freed[i] = 1
  elseif call('ZREM', QUEUE, token) == 1 then
    count('left', 1)
    freed[i] = 2
  else
    freed[i] = 0
  end
end

local waiting, held = call('ZCARD', QUEUE), call('ZCARD', HOLDERS) + extra
if doomed and held == 0 and given_back then -- the last holder of a deleted semaphore
  call('UNLINK', HOLDERS, QUEUE, CLIENTS, GRANTS, IDENTITIES, COUNTERS)
  changed = false
end

-- Whether a newcomer can have a slot at once: nobody waits, and it fits, if need be where a lease ran out unnoticed.
local function fits(weight)
  if waiting > 0 or not open then
    return false
  end
  if held + weight > limit then
    held = make_room(held)
  end
  return held + weight <= limit
end

local function full()
  local most = tonumber(config[6]) or 10000 -- the default, where a hand or an older operator has written none
  if waiting >= most then
    waiting = waiting - drop_dead_waiters()
  end
  return waiting >= most
end

local fresh, answers, n, expiry = not tally, {}, 0, now + (first or 0)
for i = 3 + releases, #ARGV, 3 do
  local token, claim, priority = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local weight, code, value, until_ms = weight_of(token), nil, 0, 0
  if claim ~= '' then
    until_ms = tonumber(call('ZSCORE', HOLDERS, token) or 0)
    local place = call('ZSCORE', QUEUE, token)
    if until_ms > now then
      code, value = 1, tonumber(call('ZSCORE', GRANTS, token))
    elseif place then
      code, value = 2, place % STEP
    elseif until_ms > 0 then -- granted and run out, and nobody has noticed
      take_back({ token })
      held, until_ms = held - weight, 0
    end
  end
  if code then
    -- an earlier attempt was executed
  elseif not limit then
    code = -4
  elseif state == 'Closed' then
    code = -1
  elseif limit > 0 and weight > limit then
    code = -3
  elseif fits(weight) then
    local waits = {}
    code, value, until_ms = 1, note_grant(0, false, waits), expiry
    call('ZADD', HOLDERS, format('%d', expiry), token)
    call('ZADD', GRANTS, format('%d', value), token)
    write_waits(waits)
    if held == 0 then
      created(HOLDERS)
      created(GRANTS)
    end
    held = held + weight
    extra = extra + weight - 1
  elseif priority == 'x' then
    code = -5
  elseif full() then
    code = -2
  else
    value = tonumber(claim)
    if value then
      ticket = max(ticket, value) -- after a loss of data, who comes later goes behind
    else
      ticket = max(ticket + 1, now - EPOCH)
      value = ticket
    end
    changed = true
    call('ZADD', QUEUE, format('%d', value - priority * STEP), token)
    if waiting == 0 then
      created(QUEUE)
    end
    waiting = waiting + 1
    code = 2
  end
  if code < 0 and limit and not doomed then
    count('refused', 1)
  end
  answers[n + 1], answers[n + 2], answers[n + 3] = code, value, until_ms
  n = n + 3
end

local own, soonest, more = {}, nil, false
if waiting > 0 then
  own, expiry, soonest, more = grant(me, held)
elseif limit then
  write_counters()
end
if fresh and changed then
  created(COUNTERS)
end
local reply = head(soonest, more)
reply[10], n = expiry, 10
for _, part in ipairs({ freed, answers, own }) do
  for i = 1, #part do
    reply[n + i] = part[i]
  end
  n = n + #part
end
return reply
