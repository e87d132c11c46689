-- Housekeeping (see house.lua).
--
-- ARGV   -
-- Reply  head (its `more` says: call again).
-- Rules  4, 5, 11.
-- include: prelude
-- include: grant
-- include: dead
-- include: house
return { keep_house() }
