"""What the site needs besides: links to files of the repository that are no pages of it."""

import re

#: ``[text](../path)``: the file lies outside of the pages.
_OUTSIDE = re.compile(r"\[`?([^\]`]+)`?\]\(\.\./([^)#\s]+)[^)]*\)")


def on_page_markdown(markdown, **_):
    """Name files of the repository instead of linking to what the site doesn't have."""
    return _OUTSIDE.sub(lambda link: f"{link[1]} (`{link[2]}` in the repository)", markdown)
