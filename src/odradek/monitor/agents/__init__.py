"""What agents may ask about the groups of a cluster: tools of the Model Context Protocol."""
