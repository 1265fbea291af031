from fedsink.data.spec import DataSpec as DataSpec
from fedsink.data.views import View as View
from fedsink.data.views import view_from_dict as view_from_dict
