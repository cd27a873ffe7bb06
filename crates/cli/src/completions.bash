
# Names of models have colons, at which bash splits words: they are joined for the program, and the part before the last
# colon is cut from its answers, since bash replaces only what is after it.
_stonechat() {
    local -a words=()
    local i last=-1 joins=false cword=0
    for ((i = 0; i < ${#COMP_WORDS[@]}; i++)); do
        if [[ $joins == true || ($last -ge 1 && ${COMP_WORDS[i]} == :*) ]]; then
            words[last]+=${COMP_WORDS[i]}
        else
            words[++last]=${COMP_WORDS[i]}
        fi
        if [[ ${COMP_WORDS[i]} == *: ]]; then joins=true; else joins=false; fi
        if ((i == COMP_CWORD)); then cword=$last; fi
    done
    local current=${words[cword]}
    local prefix=${current%"${current##*:}"}
    local -a COMP_WORDS=("${words[@]}")
    local COMP_CWORD=$cword
    _clap_complete_stonechat "$1" "$current" "$3"
    if [[ -n $prefix && $COMP_WORDBREAKS == *:* ]]; then
        for i in "${!COMPREPLY[@]}"; do
            COMPREPLY[i]=${COMPREPLY[i]#"$prefix"}
        done
    fi
}
complete -o nospace -o bashdefault -F _stonechat stonechat
