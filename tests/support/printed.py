"""What a script prints, compared with the page that shows it."""

import re

NUMBER = re.compile(r"\d*\.\d+")
# Another CPU, or another version of torch, rounds otherwise: a network's accuracy on 450 images
# then differs by one or two hundredths.
TOLERANCE = 0.03


def differences(printed, page):
    """The printed lines that a page does not have, up to the last digits of their numbers."""
    known = {}
    for line in page.splitlines():
        known.setdefault(NUMBER.sub("#", line.strip()), []).append(NUMBER.findall(line))
    lost = []
    for line in printed.splitlines():
        numbers = [float(number) for number in NUMBER.findall(line)]
        same = [
            documented
            for documented in known.get(NUMBER.sub("#", line.strip()), [])
            if all(
                abs(number - float(other)) <= TOLERANCE * max(1, abs(number))
                for number, other in zip(numbers, documented, strict=True)
            )
        ]
        if line.strip() and not same:
            lost.append(line)
    return lost
