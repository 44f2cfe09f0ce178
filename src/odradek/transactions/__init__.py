"""State machine of transactional ids: the transaction coordinator."""
