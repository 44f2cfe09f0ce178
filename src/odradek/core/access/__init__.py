"""Who may do what: ACLs, stored credentials and delegation tokens."""
