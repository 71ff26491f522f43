"""What comes from outside, changed at random: nothing but our own errors may come of it, and that soon.

`inputs` makes and counts the inputs; each other module is about one border. `bin/test tests/fuzz
--hypothesis-profile=long` tries a million.
"""
