"""The settings of clients besides those of the connection: their types, files, Java's and those of security."""
