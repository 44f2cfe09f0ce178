"""The coordinators of groups and of transactional ids, as the broker runs them."""
