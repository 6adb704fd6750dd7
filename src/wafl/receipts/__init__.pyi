from .checking import verify as verify
from .merging import Result as Result
from .merging import merge as merge
from .questions import Questions as Questions
from .replying import receipt as receipt
from .requesting import request as request
