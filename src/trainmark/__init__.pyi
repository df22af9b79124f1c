"""What ``__init__.py`` finds when it is used, for type checkers and editors."""

from trainmark.api import Records as Records
from trainmark.api import accept as accept
from trainmark.api import audit_results as audit_results
from trainmark.api import check_rules as check_rules
from trainmark.api import compare as compare
from trainmark.api import follow as follow
from trainmark.api import frame as frame
from trainmark.api import load as load
from trainmark.api import pack as pack
from trainmark.api import run as run
from trainmark.api import table as table
from trainmark.api import verify as verify

__version__: str
