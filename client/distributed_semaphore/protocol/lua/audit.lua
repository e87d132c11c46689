-- Housekeeping, after it has been checked, and put right, that the keys agree with each other. No script leaves them otherwise;
-- a hand, an eviction or a restore from an old dump may.
--
-- ARGV   -
-- Reply  head (its `more` says: call again), repairs { kind, number, ... }, empty where all is well. Kinds:
--        token     a holder, or one of the first 200 waiters, that is no token: removed, since scripts would stumble over it
--        ungranted a holder without grant: it gets one, with a new fence, so that it is shown and its acquire can be retried
--        unheld    a grant without holder: removed
--        identity  the identity of a process that is not known: removed
--        extra     the weight of the holders beyond one each was counted wrongly: counted anew
--        fence     the fence was lower than one that was granted: raised, so that the next is higher
-- Rules  3, 7, 11, 15. Looks at 2,000 holders and 200 identities at most; a semaphore with more is not checked that far.
-- include: prelude
-- include: grant
-- include: dead
-- include: house
local MANY = 10 * MOST
local repairs = {}

local function repaired(kind, n)
  if n > 0 then
    local m = #repairs
    repairs[m + 1], repairs[m + 2] = kind, n
    changed = true
  end
end

local function remove_strangers(key, tokens)
  local n = 0
  for _, token in ipairs(tokens) do
    if not match(token, '^[^.]+%.%d+%.%d+$') then
      n = n + call('ZREM', key, token)
    end
  end
  return n
end

local function without(key, members)
  local missing = {}
  for from = 1, #members, MOST do
    local upto = math.min(from + MOST - 1, #members)
    for i, score in ipairs(call('ZMSCORE', key, unpack(members, from, upto))) do
      if not score then
        missing[#missing + 1] = members[from + i - 1]
      end
    end
  end
  return missing
end

local function audit_slots()
  repaired('token', remove_strangers(HOLDERS, call('ZRANGE', HOLDERS, 0, MANY - 1))
    + remove_strangers(QUEUE, call('ZRANGE', QUEUE, 0, MOST - 1)))
  local unheld = without(HOLDERS, call('ZRANGE', GRANTS, 0, MANY - 1))
  for _, token in ipairs(unheld) do
    call('ZREM', GRANTS, token)
  end
  repaired('unheld', #unheld)
  local last = call('ZRANGE', GRANTS, -1, -1, 'WITHSCORES')[2]
  if last and tonumber(last) > fence then
    fence = tonumber(last)
    repaired('fence', 1)
  end
  local holders = call('ZRANGE', HOLDERS, 0, MANY)
  local ungranted = without(GRANTS, holders)
  for _, token in ipairs(ungranted) do
    fence = max(fence + 1, usec)
    call('ZADD', GRANTS, format('%d', fence), token)
  end
  repaired('ungranted', #ungranted)
  local weight = 0
  for _, token in ipairs(holders) do
    weight = weight + weight_of(token) - 1
  end
  if #holders <= MANY and weight ~= extra then
    extra = weight
    repaired('extra', 1)
  end
end

local function audit_identities()
  local known = call('HLEN', IDENTITIES)
  if known > 0 and known <= MOST then
    local unknown = without(CLIENTS, call('HKEYS', IDENTITIES))
    if #unknown > 0 then
      repaired('identity', call('HDEL', IDENTITIES, unpack(unknown)))
    end
  end
end

if limit and not doomed then
  audit_slots()
  audit_identities()
end
return { keep_house(), repairs }
