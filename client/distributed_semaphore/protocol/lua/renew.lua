-- The heartbeat of one process on one semaphore: renews its slots, keeps its waiters alive, tells it what it missed.
--
-- ARGV   client, identity (JSON, or '' when it is known), number of slots held, (token, fence, expiry) for each, then up to
--        16 waiting tokens, the oldest first. fence and expiry are what the client believes; they count in a reclaim only.
-- Reply  head, lapsed (1: the lease of this client had run out, so a grant may have dropped its waiters), expiry of the
--        renewed slots, lost tokens, granted { token, fence, expiry, ... }, gone (waiting tokens the server does not know).
--        The first waiting token that still queues vouches for those behind it: grants go in order.
-- Rules  4, 5 and 6: whatever message was lost, this reply heals it. Costs the same with 10 and 10,000 waiters.
-- Rule   10: while a reclaim is open, a slot that the server lost is put back, unless its lease has run out (a renewal may
--        be late, and the slot may have been somebody else's since).
-- include: prelude
-- include: grant
local me, identity, holding = ARGV[1], ARGV[2], tonumber(ARGV[3])
local lost, granted, gone, expiry = {}, {}, {}, 0
local tokens = {}
for i = 1, holding do
  tokens[i] = ARGV[3 * i + 1]
end
if not limit then
  return { head(), 1, 0, lost, granted, gone }
end
if doomed and call('ZCARD', HOLDERS) == 0 then -- only the word is left that the semaphore was deleted
  return { head(), 1, 0, tokens, granted, gone }
end

local leased = call('ZSCORE', CLIENTS, me)
local lapsed = not leased or tonumber(leased) <= now
call('ZADD', CLIENTS, format('%d', now + first), me)
if identity ~= '' then
  call('HSET', IDENTITIES, me, identity)
end

if holding > 0 then
  expiry = now + lease
  local until_text = format('%d', expiry)
  local expiries, alive, back = call('ZMSCORE', HOLDERS, unpack(tokens)), {}, {}
  for i, token in ipairs(tokens) do
    local claimed, believed = tonumber(ARGV[3 * i + 2]), tonumber(ARGV[3 * i + 3])
    local n = #alive
    if expiries[i] and tonumber(expiries[i]) > now then
      alive[n + 1], alive[n + 2] = until_text, token
    elseif reclaim > now and believed > now then
      alive[n + 1], alive[n + 2] = until_text, token
      local m = #back
      back[m + 1], back[m + 2] = claimed, token
      fence = max(fence, claimed)
      extra = extra + weight_of(token) - 1
      call('ZREM', QUEUE, token) -- it had rejoined before it heard of its grant
    else
      lost[#lost + 1] = token
    end
  end
  if #alive > 0 then
    call('ZADD', HOLDERS, unpack(alive))
  end
  if #back > 0 then
    call('ZADD', GRANTS, unpack(back))
    count('reclaimed', #back / 2)
    changed = true
    write_counters()
  end
end

for i = 4 + 3 * holding, #ARGV do
  local token = ARGV[i]
  if call('ZSCORE', QUEUE, token) then
    break
  end
  local held_until = call('ZSCORE', HOLDERS, token)
  if held_until then
    local n = #granted
    granted[n + 1], granted[n + 2], granted[n + 3] =
      token, tonumber(call('ZSCORE', GRANTS, token)), tonumber(held_until)
  else
    gone[#gone + 1] = token
  end
end
local own, own_expiry, soonest, more, expired = {}, 0, nil, false, false
if call('ZCARD', QUEUE) > 0 then
  expired = take_back_expired() -- or `soonest` might be in the past, and the timer of who waits would never rest
  own, own_expiry, soonest, more = grant(me)
  soonest = soonest or tonumber(call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')[2])
end
for i = 1, #own, 2 do
  local n = #granted
  granted[n + 1], granted[n + 2], granted[n + 3] = own[i], own[i + 1], own_expiry
end

if doomed or lifetime > 0 then
  expire_all(doomed and lease + 60000 or lifetime)
  if lifetime > 0 then
    call('PEXPIRE', CONFIG, lifetime)
  end
end
return { head(soonest, more or expired), lapsed and 1 or 0, expiry, lost, granted, gone }
