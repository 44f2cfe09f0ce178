"""Parts that several state machines share: tables of requests and transitions, declared settings."""
