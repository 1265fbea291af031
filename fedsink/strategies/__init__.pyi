from fedsink.strategies.base.central_statement import SampleOfRecords as SampleOfRecords
from fedsink.strategies.base.central_strategy import CentralRounds as CentralRounds
from fedsink.strategies.base.central_strategy import CentralSettings as CentralSettings
from fedsink.strategies.base.central_strategy import CentralStrategy as CentralStrategy
from fedsink.strategies.base.central_strategy import central_plan as central_plan
from fedsink.strategies.base.round_strategy import RoundStrategy as RoundStrategy
from fedsink.strategies.base.round_strategy import StrategySettings as StrategySettings
