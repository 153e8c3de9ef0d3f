from hypothesis import settings

settings.register_profile("default", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("default")
