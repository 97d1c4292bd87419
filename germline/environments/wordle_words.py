"""The words of the guessing game: common words of five letters.

The list is short, so that a model of one million parameters can learn the letters of every word.
"""

_LINES = """
apple beach black blame board bread break brick bring brown build chain chair chalk cheap chest
child clean clear climb clock cloud coast crane cream crowd dance dirty doubt dream dress drink
drive earth eight empty enjoy equal event every faith field fight flame floor fresh front fruit
glass globe grape grass green group guard guess happy heart heavy honey horse hotel house human
image juice knife large laugh learn lemon light lucky lunch maple march match metal mixed money
month motor mouse mouth music night noise north ocean offer onion other paint panel paper party
peace phone piano pilot place plane plant plate point pound power price pride proud quick quiet
radio raise river robot rough round salad scale sharp sheep shelf shine shirt short skill slate
sleep slope small smile smoke snake solid south space spoon sport stage stone storm story sugar
sweet table teeth thick tiger toast tower track train trust truth uncle voice water wheat wheel
white woman world young
"""

WORDS: tuple[str, ...] = tuple(_LINES.split())
