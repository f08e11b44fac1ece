/* SPDX-License-Identifier: MIT */
/* Characters of chain text, whatever the locale says. */
#ifndef ROWFOLD_LEXICAL_H
#define ROWFOLD_LEXICAL_H

static inline int rfi_is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static inline int rfi_is_digit(char c) { return c >= '0' && c <= '9'; }
static inline int rfi_is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
/* In a vector's name: at the start, or later. */
static inline int rfi_is_name(char c, int later) {
    return rfi_is_letter(c) || (later && (rfi_is_digit(c) || c == '.'));
}

#endif
