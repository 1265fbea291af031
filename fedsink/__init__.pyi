from fedsink.api import Run as Run
from fedsink.api import load as load
from fedsink.api import resume as resume
from fedsink.api import simulate as simulate
from fedsink.clients.guard import guard as guard
from fedsink.federation import Federation as Federation
from fedsink.models import Dcgan as Dcgan
from fedsink.models import DctMlp as DctMlp
from fedsink.models import Generator as Generator
from fedsink.models import Mlp as Mlp
from fedsink.privacy import BatchClip as BatchClip
from fedsink.privacy import Clipped as Clipped
from fedsink.privacy import CriticClip as CriticClip
from fedsink.privacy import Gaussian as Gaussian
from fedsink.privacy import Laplace as Laplace
from fedsink.privacy import MatchedCost as MatchedCost
from fedsink.privacy import NoiseKey as NoiseKey
from fedsink.privacy import PrivacyPlan as PrivacyPlan
from fedsink.privacy import RandomizedResponse as RandomizedResponse
from fedsink.privacy import RecordClip as RecordClip
from fedsink.privacy import attack_clip as attack_clip
from fedsink.privacy import epsilon as epsilon
from fedsink.strategies.recipes import GSWGAN as GSWGAN
from fedsink.strategies.recipes import DPSinkhorn as DPSinkhorn
from fedsink.strategies.recipes import EntropicLDP as EntropicLDP
from fedsink.transport import SinkhornLoss as SinkhornLoss

__version__: str
