"""JSON Schema: drafts 4, 6 and 7, and the keywords of 2019-09 and 2020-12 that compatibility depends on."""
