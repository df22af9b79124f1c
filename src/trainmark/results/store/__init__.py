"""The index of results: what records say in a database, to be listed and filtered quickly.

Records are files and the truth; everything here can be built from them again.
"""
