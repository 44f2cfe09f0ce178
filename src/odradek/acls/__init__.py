"""The decisions of Kafka's StandardAuthorizer: rules, the index of ACLs, and the words of the audit log. Pure."""
