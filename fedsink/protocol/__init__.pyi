from fedsink.protocol.requests import CentralRequest as CentralRequest
from fedsink.protocol.requests import Packable as Packable
from fedsink.protocol.requests import check_matrix as check_matrix
from fedsink.protocol.requests import check_rows as check_rows
from fedsink.protocol.requests import run_name as run_name
from fedsink.protocol.requests import table as table
