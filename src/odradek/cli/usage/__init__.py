"""The errors of a wrong command line: what is wrong, and what a person may have meant."""
