-- Shared part: housekeeping that needs no client. Takes back expired slots, drops dead waiters, grants, and forgets
-- processes that have been silent for long and hold nothing. Gives the head of a reply (its `more` says: call again).
local function keep_house()
  local SILENT = 60000
  local expired = take_back_expired() -- a grant looks for them only where no slot is free
  drop_dead_waiters()
  local _, _, soonest, more = grant('')
  local silent = call('ZRANGEBYSCORE', CLIENTS, '-inf', now - (lease or 0) - SILENT, 'LIMIT', 0, MOST)
  if #silent > 0 then
    call('ZREM', CLIENTS, unpack(silent))
    call('HDEL', IDENTITIES, unpack(silent))
  end
  return head(soonest, more or expired or #silent == MOST)
end
