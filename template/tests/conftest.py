"""Failed checks of fedshift_testing show their values, as those of the tests here do."""

import pytest

pytest.register_assert_rewrite("fedshift_testing.every_method", "fedshift_testing.wire")
