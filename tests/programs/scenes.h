/* Programs of several scenes: the first argument names the one to play, none plays the first. */
#pragma once
#include <stdio.h>
#include <string.h>
#pragma GCC diagnostic ignored "-Wmissing-field-initializers" /* most scenes have no `how` */

struct scene {
    const char *name;
    void (*play)(void);
    long how; /* tells scenes with one function apart */
};

static long scene_how;
static char **scene_words;
static int scene_word_count;

/* Returns an argument after the scene's name, from 0 up; `otherwise` if there are fewer. */
static inline const char *scene_argument(int number, const char *otherwise)
{
    return number + 2 < scene_word_count ? scene_words[number + 2] : otherwise;
}

/* Plays a scene of a list that ends with an empty one. Returns the program's exit status. */
static inline int play(int count, char **words, const struct scene *scenes)
{
    scene_words = words;
    scene_word_count = count;
    for (; scenes->name; scenes++)
        if (count < 2 || !strcmp(words[1], scenes->name)) {
            scene_how = scenes->how;
            scenes->play();
            return 0;
        }
    fprintf(stderr, "%s: no scene %s\n", words[0], words[1]);
    return 1;
}

/* Defines main: evaluates `first`, then plays the scene that the first argument names. */
#define SCENES(first, ...)                                                                         \
    int main(int count, char **words)                                                              \
    {                                                                                              \
        first;                                                                                     \
        return play(count, words, (const struct scene[]){__VA_ARGS__, {0}});                       \
    }
