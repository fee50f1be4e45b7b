# Completion of adma for fish. SPDX-License-Identifier: MIT OR Apache-2.0

function __adma_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l reply (adma --complete $words[2..-1] 2>/dev/null)
    switch "$reply[1]"
        case ':command *'
            set -l at (string replace ':command ' '' -- $reply[1])
            complete -C (string join ' ' -- (string escape -- $words[(math $at + 1)..-1]))
        case :files
            set -l option (string match -r -- '^--[^=]*=' (commandline -ct))
            set -l paths (__fish_complete_path (string replace -- "$option" '' (commandline -ct)))
            printf '%s\n' "$option"$paths
        case '*'
            printf '%s\n' $reply
    end
end

complete -c adma -f -a '(__adma_complete)'
