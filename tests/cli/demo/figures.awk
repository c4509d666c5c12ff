# Prints for every well-formed line of an access log its date in UTC, a tab, and its visitor: the
# address, a blank, and the agent. Shares nothing with the package but the definition.

BEGIN {
    split("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec", names, " ")
    for (n in names) month_of[names[n]] = n
    quoted = "\"([^\"\\\\]|\\\\.)*\""
    cut = substr(quoted, 1, length(quoted) - 1)
    d = "[0-9]"
    form = "^[^ ]+ [^ ]+ [^ ]+ \\[" d d "/[A-Z][a-z][a-z]/" d d d d ":" d d ":" d d ":" d d \
           " [+-]" d d d d "\\] " quoted " " d d d " (" d "+|-)( " quoted " " cut "(\"( .*)?)?)?$"
}

# The day's number since 1 January 1970, and back.
function number(y, m, d,    era) {
    if (m <= 2) { y--; m += 12 }
    return 365 * y + int(y / 4) - int(y / 100) + int(y / 400) + int((153 * (m - 3) + 2) / 5) + d - 719469
}

function text(n,    y, m, d) {
    y = 1970 + int(n / 366)
    while (number(y + 1, 1, 1) <= n) y++
    m = 1
    while (m < 12 && number(y, m + 1, 1) <= n) m++
    return sprintf("%04d-%02d-%02d", y, m, n - number(y, m, 1) + 1)
}

$0 ~ form {
    match($0, /\[[^]]*\]/)
    time = substr($0, RSTART + 1, RLENGTH - 2)
    day = substr(time, 1, 2) + 0
    month = month_of[substr(time, 4, 3)] + 0
    year = substr(time, 8, 4) + 0
    hour = substr(time, 13, 2) + 0
    minute = substr(time, 16, 2) + 0
    offset = 60 * substr(time, 23, 2) + substr(time, 25, 2)
    if (substr(time, 22, 1) == "-") offset = -offset
    n = number(year, month, day)
    if (!month || hour > 23 || minute > 59 || text(n) != sprintf("%04d-%02d-%02d", year, month, day))
        next
    line = $0
    gsub(/\\\\/, "\001", line)
    gsub(/\\"/, "\002", line)
    split(line, part, "\"")
    print text(int((1440 * n + 60 * hour + minute - offset) / 1440)) "\t" $1 " " part[6]
}
