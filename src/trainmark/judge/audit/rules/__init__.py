"""The rules of an audit, one a file, found by listing this folder.

A rule is a module with ``SEVERITY`` and ``find(subjects)``, which yields each subject that breaks
it with a message. Its name is the module's, its definition the sentence ``audit_rule.<name>`` of
``results/messages.toml``.
"""
