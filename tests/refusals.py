"""What Germline says where it refuses a call."""

import pytest

from germline.errors import GermlineError


def refusal(call, *arguments, **settings):
    """Return the message with which a call is refused."""
    with pytest.raises(GermlineError) as caught:
        call(*arguments, **settings)
    return str(caught.value)
